package file

// Identity is what the redo log is bound to.
func Identity(d *Device) string { return d.id }
