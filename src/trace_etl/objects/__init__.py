"""Object storage behind one interface (`store`); `opening` picks the backend from a URL."""
