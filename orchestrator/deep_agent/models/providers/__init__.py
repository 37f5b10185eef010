"""The clients of model services. Each module needs a large or optional package: import it late."""
