#!/usr/bin/env bash
# Installs Chromium for the tests that look at the dashboard in a browser (program.DashboardBrowser). Those are skipped
# without one, so setup.sh does not ask for it: a browser takes 400 MB.
#   scripts/install_chromium.sh && ctest --test-dir build/release -R DashboardBrowser
set -euo pipefail

if [ -n "${MEGALITH_CHROMIUM:-}" ]; then
  echo "MEGALITH_CHROMIUM names $MEGALITH_CHROMIUM; nothing to install"
  exit 0
fi
for program in chromium chromium-browser google-chrome; do
  if command -v "$program" >/dev/null; then
    echo "$program is already installed"
    exit 0
  fi
done
command -v apt-get >/dev/null || {
  echo "there is no apt-get here; install Chromium, and name it by MEGALITH_CHROMIUM" >&2
  exit 2
}
as_root=()
if [ "$(id -u)" -ne 0 ]; then as_root=(sudo); fi
"${as_root[@]}" apt-get -qq update
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium fonts-dejavu-core
