"""Web shops for the tests of shopping: django-oscar, and one of our own."""
