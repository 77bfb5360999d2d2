# shellcheck shell=bash
# The programs of the lab, for .ci/run, which defines need. npm is for the validators of OpenAPI.
need pgbouncer pgbouncer
need prometheus promtool
need nginx nginx
need chromium chromium
need npm npm
need default-jdk-headless javac
need maven mvn
need kcat kcat
need redis-server redis-server
