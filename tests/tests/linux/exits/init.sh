echo workload running
while read -r word number; do
    case $word in
    # Exits of several kinds: of ports, of the timer, and halts.
    work)
        ports 3000 && sleep 1 && ports 2000 && echo worked
        ;;
    # By processes whose numbers of exits are known.
    again) ports 1200 && ports 700 && sleep 1 && echo again worked ;;
    # The program's file is read while it runs, which is longer than its samples wait.
    ask) ports 100 ask && echo asked ;;
    all | some) ports 400 && sleep 2 && ports 1100 && echo "$word" ports ;;
    # Pages of reserved memory, which nobody has touched: one, and some.
    warm) first_touch "$number" 1 ;;
    touch) first_touch 0 128 && echo touch pages ;;
    # With call stacks.
    call) calls & echo calling ;;
    many) ports && echo many ports ;;
    # A loop on each vCPU, the last one in a container.
    busy)
        for vcpu in 1 2; do
            taskset $vcpu sh -c 'while :; do :; done' &
        done
        container=/sys/fs/cgroup/docker/$(printf %064d 7)
        mount -t sysfs none /sys
        mount -t cgroup2 none /sys/fs/cgroup
        mkdir -p $container
        echo $! >$container/cgroup.procs
        echo "pid contained $!"
        echo busy vCPUs
        ;;
    over) poweroff -f ;;
    esac
done
