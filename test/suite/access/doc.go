// Package access asks a real sluiced who may see what. Changes are made as an operator makes them, by the program sluice and by
// edited files; what initiators see is said by libiscsi's iscsi-ls and iscsi-inq, under the names that a test gives them.
package access
