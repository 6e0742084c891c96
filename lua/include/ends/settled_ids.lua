--[[ settled_ids: which claims end in this call because their holder says so. `state` still shows them as claimed while the call
reads, so what looks at claims besides leaves these alone. ]]

local settled   -- id → anything; nil: there are none

local function reset()
  settled = nil
end

--- The claims of these jobs end: ids are the keys of the table.
local function note_settled(ids)
  settled = ids
end

--- Whether the claim of this job ends otherwise.
local function is_settled(id)
  return settled ~= nil and settled[id] ~= nil
end
