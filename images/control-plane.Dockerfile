# The programs of the control plane. Its context is a folder that holds them: `make images` gathers it.
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE}
RUN groupadd --gid 10001 hami && useradd --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin hami \
 && install -d -o hami -g hami /cluster /etcd
COPY . /usr/local/bin/
USER 10001:10001
