"""Accept connections and serve HTTP within limits."""
