# A process that is busy all the time: the guest never leaves the processor of its host to others.
one &
echo "pid one $!"
echo workload running
read -r word
poweroff -f
