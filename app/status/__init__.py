"""Health, metrics, `flask doctor`, the front page and the documentation. Health and pages make no calls to chains."""
