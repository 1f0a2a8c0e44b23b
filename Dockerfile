# The daemon in a container:
#   docker build --target cpu --build-arg ZIGGURAT_COMMIT=$(git rev-parse --short HEAD) \
#       -t ziggurat:0.1.0-cpu .
#   docker run --read-only --stop-timeout 40 -v MODEL_FOLDER:/model:ro \
#       -p 127.0.0.1:50051:50051 -p 127.0.0.1:9400:9400 ziggurat:0.1.0-cpu
# It speaks plain text, so publish its ports on loopback only, or give it certificates
# (docs/deployment.md).
# Every RUN is a script of this repository. docs/deployment.md says what of this was proved, and how.

# ---- cpu: Debian, with everything from its own packages -----------------------------------------
FROM debian:bookworm-20250520-slim AS build-cpu
WORKDIR /src
COPY scripts/install-dependencies.sh scripts/install-dependencies.sh
RUN scripts/install-dependencies.sh --build
COPY . .
ARG ZIGGURAT_COMMIT=unknown
RUN scripts/build.sh release ziggurat_cli
RUN deploy/container/collect.sh build/ziggurat /out

FROM debian:bookworm-20250520-slim AS cpu
COPY deploy/container/install-runtime.sh /tmp/install-runtime.sh
COPY --from=build-cpu /out/packages /tmp/packages
RUN /tmp/install-runtime.sh packages
COPY --from=build-cpu /out/usr /usr
RUN /tmp/install-runtime.sh daemon
USER 65532:65532
ARG ZIGGURAT_COMMIT=unknown
LABEL org.opencontainers.image.title="Ziggurat, on CPUs"
LABEL org.opencontainers.image.revision=$ZIGGURAT_COMMIT
EXPOSE 50051 9400
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m --retries=3 \
  CMD ["ziggurat", "health", "--timeout=4"]
ENTRYPOINT ["/usr/bin/tini", "--", "ziggurat"]
CMD ["serve", "--model=/model", "--listen=0.0.0.0:50051", "--http=0.0.0.0:9400", \
     "--allow-plain-text"]

# ---- cuda: NVIDIA's runtime, with the rest from Ubuntu's packages ---------------------------------
FROM nvidia/cuda:13.0.1-devel-ubuntu24.04 AS build-cuda
WORKDIR /src
COPY scripts/install-dependencies.sh scripts/install-dependencies.sh
RUN scripts/install-dependencies.sh --build
COPY . .
ARG ZIGGURAT_COMMIT=unknown
RUN scripts/build.sh cuda ziggurat_cli
RUN deploy/container/collect.sh build-cuda/ziggurat /out

FROM nvidia/cuda:13.0.1-runtime-ubuntu24.04 AS cuda
COPY deploy/container/install-runtime.sh /tmp/install-runtime.sh
COPY --from=build-cuda /out/packages /tmp/packages
RUN /tmp/install-runtime.sh packages
COPY --from=build-cuda /out/usr /usr
RUN /tmp/install-runtime.sh daemon
USER 65532:65532
ARG ZIGGURAT_COMMIT=unknown
LABEL org.opencontainers.image.title="Ziggurat, with CUDA"
LABEL org.opencontainers.image.revision=$ZIGGURAT_COMMIT
EXPOSE 50051 9400
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m --retries=3 \
  CMD ["ziggurat", "health", "--timeout=4"]
ENTRYPOINT ["/usr/bin/tini", "--", "ziggurat"]
CMD ["serve", "--model=/model", "--listen=0.0.0.0:50051", "--http=0.0.0.0:9400", \
     "--allow-plain-text"]
