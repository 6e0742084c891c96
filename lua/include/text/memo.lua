--[[ memo: what was made of a text that comes again and again. A function outlives the call, and so does what it remembers;
that must be true of the text in every call. ]]

local MEMO_MAX = 500   -- texts that a memo remembers

--- Remember `value` for `text`; beyond `most` of them forget all. A memo is `{known = {}, count = 0}`.
local function remember(memo, text, value, most)
  if memo.count == most then
    memo.known, memo.count = {}, 0
  end
  memo.known[text], memo.count = value, memo.count + 1
  return value
end
