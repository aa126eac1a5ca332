#!/bin/sh
# Busy all the time, in user mode.
while :; do :; done
