"""The clients of model services; each module needs a package that is large or an extra, so import it late."""
