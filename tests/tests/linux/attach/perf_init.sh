# A process that the kernel works for, and one that is busy in user mode.
dd if=/dev/zero of=/dev/null bs=4k 2>/dev/null & dd=$!
one & one=$!
echo "pid dd $dd"
echo "pid one $one"
echo workload running
read -r word
poweroff -f
