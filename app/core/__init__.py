"""Ground that every room stands on: values, the clock, identifiers and the unit of work."""
