"""Where fanout reaches behind ADK's public interface."""
