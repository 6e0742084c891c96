--[[ settled_ids: notes the claims that the worker itself ends in this call. `state` still shows these jobs as
claimed while the call reads, so other code that looks at claims skips them. ]]

local settled   -- id → any value; nil without any

local function reset()
  settled = nil
end

--- Note the jobs whose claims end; their ids are the table's keys.
local function note_settled(ids)
  settled = ids
end

--- Return whether the worker ends the claim of this job in this call.
local function is_settled(id)
  return settled ~= nil and settled[id] ~= nil
end
