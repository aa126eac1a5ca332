#!/bin/sh
# Busy for a while, then asleep for a while.
while :; do
    count=0
    while [ $count -lt 3000 ]; do count=$((count + 1)); done
    sleep 0.1
done
