"""The provider table: routes, prices and credentials of each upstream."""
