"""The Model Context Protocol at `/mcp`: the API's views as tools, without sessions."""
