# The image of the worker, the engine proxy, the command line and Flower. Agents' commands do not run in it but in the
# sandbox images, on the Docker engine that the worker uses.
# Another base needs Debian's apt and Python 3.11 or newer with venv, for example `fanout/python`. `make pins` prints
# the digest of a base, by which it is named where what is built must not change.
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE}

USER root
RUN apt-get update \
    && apt-get install -y --no-install-recommends git \
    && rm -rf /var/lib/apt/lists/* \
    && install -d -o 10002 -g 10002 -m 700 /data

WORKDIR /opt/fanout
# Every package is what requirements.lock says, by its hash. A virtual environment, because Debian's Python rejects other
# packages. The code is copied afterwards, so that changing it does not reinstall the dependencies.
COPY requirements.lock ./
RUN python3 -m venv /opt/venv \
    && /opt/venv/bin/pip install --no-cache-dir --require-hashes --no-deps --only-binary :all: -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY config config
COPY fanout fanout
COPY sandbox_images sandbox_images
COPY orchestrator orchestrator
COPY workers workers
# As pip does with the dependencies: nothing is written at run time, so each start would compile all of it again.
RUN /opt/venv/bin/python3 -m compileall -q fanout orchestrator workers
RUN printf '#!/bin/sh\nexec /opt/venv/bin/python3 -P -m fanout "$@"\n' >/usr/local/bin/fanout \
    && chmod 755 /usr/local/bin/fanout

# A safe path: nothing is imported from the working directory. On SIGTERM the worker requeues its jobs and ends.
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONPATH=/opt/fanout \
    PYTHONSAFEPATH=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp \
    TMPDIR=/var/tmp

USER 10002:10002
ENTRYPOINT ["python3", "-P", "-m"]
CMD ["fanout.workers"]
