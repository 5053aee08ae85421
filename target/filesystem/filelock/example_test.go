package filelock_test

import (
	"fmt"

	"github.com/sluice-storage/sluice/target/filesystem/filelock"
)

// waiter has a client told of its lock.
type waiter chan *filelock.Grant

func (w waiter) Tell(g *filelock.Grant) bool {
	w <- g
	return true
}

// Two clients that speak two protocols want the same bytes of a file.
func Example() {
	table := filelock.NewTable()
	file := filelock.File{Key: "the file", Handle: []byte("a handle of it")}
	lock := func(protocol string) filelock.Lock {
		return filelock.Lock{Owner: filelock.Owner{Client: filelock.Client{Protocol: protocol, Name: "host"}, Name: "process 1"}, Range: filelock.RangeOf(0, 100), Exclusive: true}
	}
	told := make(waiter, 1)
	fmt.Println(table.Lock(file, lock("nlm4"), filelock.Ask{}))
	fmt.Println(table.Lock(file, lock("nfs4"), filelock.Ask{Waiter: told}))
	fmt.Println(table.Unlock(file, lock("nlm4")))
	grant := <-told // the client of nfs4 is called, and says that it has its lock
	grant.End(true)
	holder, v := table.Test(file, lock("nlm4"))
	fmt.Println(v, "by", holder.Owner.Client.Protocol)
	// Output:
	// granted
	// blocked
	// granted
	// denied by nfs4
}
