// Package twohosts has two of our initiators and libiscsi, a stranger, work on one volume of a real sluiced over several
// portals and port groups, while wires are cut, the daemon is killed, the LUN is remapped, access states change, commands
// are reset and hosts are preempted, and a medium with a volatile cache loses its power. What all of them saw must have one
// order (porcupine), every call must end, and no write may land after one that was acknowledged later.
package twohosts
