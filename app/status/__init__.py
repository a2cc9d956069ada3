"""What the service says of itself: health, documentation and the front page. Never touches a chain."""
