# The worker's image (also the client's and Flower's). Nothing that an agent runs is in here: that is in the
# sandbox images, on the engine that the worker talks to.
# Another base needs Debian's apt and Python 3.11 or newer with venv: `fanout/python` is one.
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE}

USER root
RUN apt-get update \
    && apt-get install -y --no-install-recommends git \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/fanout
COPY pyproject.toml constraints.txt README.md LICENSE ./
# Every kind of model is reached; LiteLLM with what it brings is 240 MB of this image.
# An environment of its own: Debian's Python takes no packages beside its own. Our code comes afterwards and is
# found by PYTHONPATH, so that a change in it does not install everything again.
RUN mkdir config fanout orchestrator sandbox_images workers \
    && python3 -m venv /opt/venv \
    && /opt/venv/bin/pip install --no-cache-dir -c constraints.txt -e '.[anthropic,openai,litellm]'
COPY config config
COPY fanout fanout
COPY sandbox_images sandbox_images
COPY orchestrator orchestrator
COPY workers workers

# Our `config` comes before a stranger's of the same name. On TERM the worker itself gives
# its jobs back and ends within seconds.
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONPATH=/opt/fanout \
    PYTHONDONTWRITEBYTECODE=1

ENTRYPOINT ["python3", "-m"]
CMD ["workers"]
