"""The operators' console at `/admin`: pages over `/v1/platform`. Each page and form is a call of its views."""
