#!/usr/bin/env bash
# Writes the rules as one PrometheusRule, which the Prometheus operator loads:
#   deploy/prometheus/prometheus-rule.sh | kubectl apply -f -
set -euo pipefail
cd "$(dirname "$0")/rules"
cat <<'HEAD'
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: ziggurat
  namespace: ziggurat
  labels:
    app.kubernetes.io/name: ziggurat
spec:
  groups:
HEAD
for file in *.yml; do
  # All below the line `groups:`, two columns deeper.
  sed '1,/^groups:/d; s/^\(.\)/  \1/' "$file"
done
