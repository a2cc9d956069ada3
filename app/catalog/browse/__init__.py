"""The buyer's side: listing of services and subscriptions."""
