--[[ memo: remembers what was made from a text that comes again and again. A function outlives the call, and so does
its memo; so a remembered value must be right for the text in every call. ]]

local MEMO_MAX = 500   -- maximum number of texts that a memo remembers

--- Remember `value` for `text`; if there are more than `most` texts, forget all. A memo is `{known = {}, count = 0}`.
local function remember(memo, text, value, most)
  if memo.count == most then
    memo.known, memo.count = {}, 0
  end
  memo.known[text], memo.count = value, memo.count + 1
  return value
end
