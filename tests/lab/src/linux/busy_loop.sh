#!/bin/sh
# Runs all the time, in user mode.
while :; do :; done
