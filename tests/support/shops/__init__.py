"""Web shops for the tests of shopping: one that nobody here wrote, and some that we did."""
