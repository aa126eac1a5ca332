# Two processes that are busy in user mode, and one now and then; the kernel works for another.
one & echo "pid one $!"
two & echo "pid two $!"
( while :; do sometimes; sleep 1; done ) & echo "pid sometimes $!"
dd if=/dev/zero of=/dev/null bs=64k 2>/dev/null & echo "pid dd $!"
echo workload running
read -r word
echo counted
poweroff -f
