// Package drymemory has every conversation held while memory runs out: the smallest legal pools (package mem), and buffers
// that are denied at random, in the target, in our initiators and in the local faces of a volume. Clients of ours and of
// others work beside each other: all may become slower, none may get stuck, hear of an error or find other bytes.
package drymemory
