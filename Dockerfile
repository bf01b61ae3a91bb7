# One image for both halves, so that a mirror needs one image and their versions cannot drift apart.
# `cargo xtask image` builds the static binaries and lays this context out; nothing is pulled.
FROM scratch
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY zoneinfo /usr/share/zoneinfo
COPY metricsstore metricsstore-operator /
ENV PATH=/ SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
# A number, so that Kubernetes can see that it is not root. Pods name the command.
USER 65532:65532
