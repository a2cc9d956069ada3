"""Reading and operating a shop's page."""
