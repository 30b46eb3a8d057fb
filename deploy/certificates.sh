#!/usr/bin/env bash
# Makes an authority and one certificate for each part, for trying out mutual TLS: deploy/certificates.sh FOLDER WORKER...
# In production these come from cert-manager or SPIRE, which write the same names.
set -euo pipefail
folder=${1:?"usage: deploy/certificates.sh FOLDER WORKER..."}
shift
mkdir -p "$folder"
cd "$folder"
umask 077

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -days 30 -subj "/CN=balancer authority" \
  -keyout ca.key -out ca.crt 2>/dev/null

issue() { # NAME SUBJECT-ALTERNATIVE-NAMES
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -subj "/CN=$1" -keyout "$1.key" -out "$1.csr" 2>/dev/null
  openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -out "$1.crt" \
    -extfile <(echo "subjectAltName=$2") 2>/dev/null
  rm "$1.csr"
}

issue balancer DNS:balancer.internal
issue envoy URI:spiffe://balancer/envoy
issue admin URI:spiffe://balancer/admin
for worker in "$@"; do
  issue "agent-$worker" "URI:spiffe://balancer/agent/$worker"
done
ls ./*.crt
