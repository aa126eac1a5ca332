dd if=/dev/zero of=/dev/null bs=4k 2>/dev/null & dd=$!
calls & calls=$!
plain & plain=$!
for program in dd calls plain; do eval "echo pid $program \$$program"; done
echo workload running
while :; do
    sleep 1
    echo beat
done
