// Package e2e holds the tests that need a target and an initiator at once: correctness against a model, loss of
// connections and of the target, several paths, and every optimisation switched off. Both run in this process, over real
// sockets of the loopback interface, but where a test says otherwise.
package e2e
