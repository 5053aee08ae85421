package filesystem

import "testing"

// The number of a removed file may be a new file's while something of the old one is in use: each has its own state.
func TestANewFileOfAnOldNumberIsAnother(t *testing.T) {
	table := fileTable{m: map[fileID]*file{}}
	id := fileID{1, 2}
	old := table.get(id)
	old.forget()
	fresh := table.get(id)
	if fresh == old {
		t.Fatal("a new file is taken for a removed one")
	}
	table.put(old)
	if table.get(id) != fresh {
		t.Error("the end of the removed file takes the new one's state")
	}
}
