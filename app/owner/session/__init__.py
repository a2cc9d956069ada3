"""Sessions of owners: sign-in, cookies and CSRF tokens."""
