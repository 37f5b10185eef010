# The image of the worker, the command line and Flower. Agents' commands do not run in it but in the sandbox images,
# on the Docker engine that the worker uses.
# Another base needs Debian's apt and Python 3.11 or newer with venv, for example `fanout/python`.
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE}

USER root
RUN apt-get update \
    && apt-get install -y --no-install-recommends git \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/fanout
COPY pyproject.toml constraints.txt README.md LICENSE ./
# All model clients are installed; LiteLLM and its dependencies are 240 MB of this image.
# A virtual environment, because Debian's Python rejects other packages. The code is copied afterwards and found by
# PYTHONPATH, so that changing it does not reinstall the dependencies.
RUN mkdir config fanout orchestrator sandbox_images workers \
    && python3 -m venv /opt/venv \
    && /opt/venv/bin/pip install --no-cache-dir -c constraints.txt -e '.[anthropic,openai,litellm]'
COPY config config
COPY fanout fanout
COPY sandbox_images sandbox_images
COPY orchestrator orchestrator
COPY workers workers

# On SIGTERM the worker itself requeues its jobs and ends within seconds.
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONPATH=/opt/fanout \
    PYTHONDONTWRITEBYTECODE=1

ENTRYPOINT ["python3", "-P", "-m"]
CMD ["workers"]
