"""Events: what happened to an account, recorded with the change, for reading and for delivery to targets."""
