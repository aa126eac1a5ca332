for module in /modules/*.ko; do insmod "$module"; done
# What waits for long here is meant to: that the kernel has something to say of it every two minutes isn't progress.
echo 0 >/proc/sys/kernel/hung_task_timeout_secs
# Each of them appends: two programs that write to it at places of their own would write over each other's lines.
: >/waiters
waits >>/waiters &
dd if=/dev/zero of=/dev/null bs=4k 2>/dev/null &
# The host holds the disk up, and says when.
echo the disk is next
read -r word
waits /dev/vda >>/waiters &
until [ "$(grep -c waiter /waiters)" = 7 ]; do usleep 100000; done
# They have said who they are just before they wait.
sleep 2
while read -r word name tid; do
    read -r line <"/proc/$tid/stat"
    set -- ${line##*) }
    echo "truth $name $tid $1 $(cat "/proc/$tid/wchan")"
    while read -r address function; do echo "frame $name ${function%%+*}"; done <"/proc/$tid/stack"
done </waiters
echo truth is told
while :; do sleep 100000; done
