"""HTTP plumbing without any feature: blueprints, parsing, fields, error responses, the OpenAPI document."""
