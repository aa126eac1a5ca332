sleep 1000000 & idle=$!
processes
accounts boot
echo ready

read -r word
accounts before
hog_one & one=$!
hog_two & two=$!
threads & three=$!
echo "one is $one"
echo "two is $two"
echo "threads are $three"
echo "idle is $idle"
read -r word
accounts busy
processes
kill $one $two $three
wait $one $two $three
sleep 2
accounts after
echo work done

read -r word
if [ "$word" = stacks ]; then
    # One vCPU is mostly in the kernel.
    sh -c 'while :; do cat /proc/stat >/dev/null; done' & reader=$!
    hog_one & one=$!
    echo stacks begin
    read -r word
    kill $reader $one
    wait $reader $one
    echo stacks end
    read -r word
fi
accounts later
hog_one & one=$!
setsid sh -c 'while :; do brief; echo one of the group has gone; done' & group=$!
# It leads its group once it has called setsid(2).
until [ "$(cut -d ' ' -f 5 /proc/$group/stat)" = $group ]; do usleep 1000; done
echo "group is $group"
read -r word
kill $one
kill -- -$group
accounts group
echo group done

read -r word
poweroff -f
