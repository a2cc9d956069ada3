"""Processes that finish what requests began. Jobs are hints; the database says what is to do."""
