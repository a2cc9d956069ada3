"""What calls brought in, what they cost, and the return of payments."""
