// Two goroutines that spend their time below functions of known names.
package main

//go:noinline
func add(side, n int) int {
	sum := 0
	for i := 0; i < n; i++ {
		sum += side * i
	}
	return sum
}

//go:noinline
func measure(side, n int) int { return add(side, n) + 1 }

//go:noinline
func repeat(side int) int {
	sum := 0
	for {
		sum += measure(side, 1<<22)
		if sum == 42 {
			return sum
		}
	}
}

func main() {
	go func() { println(repeat(2)) }()
	println(repeat(3))
}
