"""The web console: static files, sessions of people, and a proxy to the user API and the Query Service."""
